"""Questions that come without their context: a RAG service finds it before each is sent.

    kvswarm run rag --target vllm,vllm-context -u 8 -t 30s
    locust -f locustfiles/rag.py --host http://127.0.0.1:8000 --rag-url http://127.0.0.1:8090

What is found becomes the prompt's context and the request's label. For comparison --labels also
takes oracle, none and shuffled, and kv: then a service that knows the model finds the label alone,
by the question's KV. --rag-wrong puts in wrong contexts. See `--help`.
"""

from locust import task

from kvswarm import ContextUser, set_defaults

set_defaults(labels="rag")


class RagUser(ContextUser):
    """Asks whatever question is next in the swarm's stream and waits for the reply."""

    @task
    async def ask(self) -> None:
        await self.send(await self.next_turn())
