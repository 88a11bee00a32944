"""Pure functions on tidy tables: nothing here knows a model, a file or a notebook."""
