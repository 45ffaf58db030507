"""llama.cpp's compute graph in outline, and what its scheduler and allocator make of it."""
