// Catch2 3 brings its own main in a library; Catch2 2 compiles it here.
#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#endif
