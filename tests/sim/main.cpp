// ps_test [--seed N]: all tests, or one simulated world, with what happens in it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 3 && std::strcmp(argv[1], "--seed") == 0) {
    setenv("PS_SEED", argv[2], 1);
    setenv("PS_TRACE", "1", 1);
    testing::GTEST_FLAG(filter) = "ParameterServer.KeepsItsPromises*";
  }
  return RUN_ALL_TESTS();
}
