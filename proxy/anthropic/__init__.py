"""Anthropic's dialect: /v1/messages and its token count."""
