"""Who may ask for what: policy, without HTTP and without vLLM."""
