"""Where numbers come from: what papers print, what others released, what this project recorded."""
