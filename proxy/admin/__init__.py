"""The admin door: what `inferenceosctl` asks for and orders, and the flat values it is told."""
