"""What requests cost and took: for Prometheus, and as OpenTelemetry's spans."""
