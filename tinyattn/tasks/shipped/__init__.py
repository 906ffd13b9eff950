"""Tasks that come with tinyattn: GLUE, few-shot tasks, E2E, and one that is made up."""
