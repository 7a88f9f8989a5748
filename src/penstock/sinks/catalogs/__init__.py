"""Register Delta tables in data catalogs, so that engines find them by name: Glue and Unity Catalog."""
