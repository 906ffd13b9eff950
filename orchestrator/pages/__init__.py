"""What pages are made of: their frame, tables of plain text, figures as SVG and how these look."""
