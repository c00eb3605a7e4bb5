"""Programs that use Tessera as a library."""
