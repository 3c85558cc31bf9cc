"""The per-block model: actions as chains of attention and MLP blocks, bytes on shared links."""
