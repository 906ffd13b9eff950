"""PET and iPET: patterns label rows without labels, from which a classifier learns."""
