#include <stormo/launch/process/energy_counters.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include <stormo/base/temporary_folder.h>

namespace stormo::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Joules = std::map<std::string, double>;

/// A machine's /sys/class/powercap.
class EnergyCountersTest : public ::testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = std::filesystem::path(folder_.path()) / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  void zone(const std::string& zone, const std::string& name, const std::string& energy_uj,
            const std::string& range = "262143328850") {
    write(zone + "/name", name);
    write(zone + "/energy_uj", energy_uj);
    write(zone + "/max_energy_range_uj", range);
  }
  EnergyCounters open() { return EnergyCounters(folder_.path()); }

  TemporaryFolder folder_ = TemporaryFolder::create("energy").take_or_throw();
};

TEST_F(EnergyCountersTest, AMachineWithoutThemSaysSo) {
  EnergyCounters none(std::filesystem::path(folder_.path()) / "absent");
  EXPECT_THAT(none.problem(), HasSubstr("this machine shows no energy counters"));
  EXPECT_THAT(none.joules(), IsEmpty());
  EXPECT_THAT(open().problem(), HasSubstr("no energy counters"));
}

TEST_F(EnergyCountersTest, WhatOnlyRootReadsIsSaid) {
  write("intel-rapl:0/name", "package-0");  // as root reads all files, there is none
  EXPECT_THAT(open().problem(), HasSubstr("only root may read"));
}

TEST_F(EnergyCountersTest, PackagesAndMemoryAreCountedOnce) {
  zone("intel-rapl:0", "package-0", "1000000");
  zone("intel-rapl:1", "package-1", "5000000");
  zone("intel-rapl:0:0", "core", "0");
  zone("intel-rapl:0:1", "dram", "100");
  zone("intel-rapl:2", "psys", "0");
  zone("intel-rapl-mmio:0", "package-0", "0");
  EnergyCounters counters = open();
  EXPECT_EQ(counters.problem(), "");
  EXPECT_EQ(counters.joules(), (Joules{{"package", 0}, {"dram", 0}}));
  for (const char* other : {"intel-rapl:0:0", "intel-rapl:2", "intel-rapl-mmio:0"})
    write(std::string(other) + "/energy_uj", "777000000");
  write("intel-rapl:0/energy_uj", "3500000");
  write("intel-rapl:1/energy_uj", "6000000");
  write("intel-rapl:0:1/energy_uj", "500100");
  const Joules now = counters.joules();
  ASSERT_EQ(now.size(), 2u);
  EXPECT_DOUBLE_EQ(now.at("package"), 3.5);
  EXPECT_DOUBLE_EQ(now.at("dram"), 0.5);
}

TEST_F(EnergyCountersTest, ACounterThatBeginsAgainGoesOn) {
  zone("intel-rapl:0", "package-0", "9000000", "10000000");
  EnergyCounters counters = open();
  write("intel-rapl:0/energy_uj", "2000000");
  EXPECT_DOUBLE_EQ(counters.joules().at("package"), 3);
  write("intel-rapl:0/energy_uj", "2500000");
  EXPECT_DOUBLE_EQ(counters.joules().at("package"), 3.5);
  write("intel-rapl:0/energy_uj", "0");
  EXPECT_DOUBLE_EQ(counters.joules().at("package"), 11);
  // a reading that fails adds nothing
  write("intel-rapl:0/energy_uj", "what");
  EXPECT_DOUBLE_EQ(counters.joules().at("package"), 11);
}

}  // namespace
}  // namespace stormo::launch
