"""From notebooks to a site: claims and their verdicts, figures, the papermill runner, the book."""
