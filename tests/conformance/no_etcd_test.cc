// Stands in for etcd_register_test.cc where it cannot be built.
#include <gtest/gtest.h>

TEST(EtcdRegister, Conformance) { GTEST_SKIP() << "set-up: " << STORMO_NO_ETCD; }
