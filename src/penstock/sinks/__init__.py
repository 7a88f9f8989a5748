"""Where rows become visible: the contract (`sink`), manifests, table schemas, and Delta."""
