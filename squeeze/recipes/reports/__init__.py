"""HTML pages of what commands report, and of where the bits of a file go (`explanation`)."""
