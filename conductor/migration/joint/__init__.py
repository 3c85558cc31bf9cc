"""Order and migration planned together: annealing over both on the compiled event loop."""
