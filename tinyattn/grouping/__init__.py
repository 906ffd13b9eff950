"""Groups of similar rows, and rows set apart so that nothing like them is left to train on."""
