"""From evidence to the tidy tables that several chapters show; what serves one page stands in `evidence/recipes`."""
