"""OpenAI's Responses dialect: /v1/responses and its token count; nothing is stored."""
