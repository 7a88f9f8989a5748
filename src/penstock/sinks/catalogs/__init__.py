"""Register Delta tables in Glue and Unity Catalog, so that engines find them by name; names of tables in catalogs."""
