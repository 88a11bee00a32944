"""One module a paper: from evidence to tidy tables that the chapters show; `evidence/recipes` makes the evidence."""
