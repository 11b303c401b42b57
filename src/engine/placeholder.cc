namespace octavo {}
