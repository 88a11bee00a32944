"""One module a paper: from evidence, or from a judge, to tidy tables that the chapters show."""
