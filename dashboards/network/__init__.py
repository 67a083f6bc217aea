"""The page of `kvswarm study network`: what lies behind the network, measured without an engine."""
