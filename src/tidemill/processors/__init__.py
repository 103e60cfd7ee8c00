"""What happens to events between the log and the sinks. Each module or package here is a processor, a verb, and its
name is the `type:` in YAML. docs/processors.md says what all of them have in common."""
