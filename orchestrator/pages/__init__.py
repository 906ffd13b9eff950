"""HTML pages: their frame, tables of plain text, and figures as SVG."""
