"""Checks of declarations that one model alone cannot make: across files, files beside a declaration, the deployment."""
