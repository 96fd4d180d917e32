"""The wheel with compiled C++ kernels. It is made in a checkout, and not part of the package."""
