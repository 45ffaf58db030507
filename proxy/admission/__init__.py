"""Who is let in: Host and Origin, API keys, and which scope each route needs."""
