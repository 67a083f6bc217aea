"""Questions for documents, written by a language model behind OpenAI's chat protocol."""
