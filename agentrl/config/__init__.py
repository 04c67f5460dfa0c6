"""Configuration: schema, composition, lint, plan."""
