#include <gtest/gtest.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/store/store_address.h>

#include <string>

namespace stormo::transport {
namespace {

using namespace std::chrono_literals;

TEST(HostPortText, ParsesEveryForm) {
  const auto is = [](const char* text, const HostPort& expected) {
    const auto parsed = parse_host_port(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, expected) << text;
  };
  is("10.0.0.2:4242", {"10.0.0.2", 4242});
  is("node7", {"node7", 0});
  is("[fd00::1]:80", {"fd00::1", 80});
  is("[::1]", {"::1", 0});
  is("fe80::1%eth0", {"fe80::1%eth0", 0});
  EXPECT_EQ(to_string(HostPort{"fd00::1", 80}), "[fd00::1]:80");
  EXPECT_EQ(to_string(HostPort{"node7", 0}), "node7");
}

TEST(HostPortText, RefusesWhatIsNoAddress) {
  for (const char* bad : {"", ":80", "[::1", "[::1]80", "a:65536", "a:-1", "a:x", "a:", "[]:1"}) {
    EXPECT_EQ(parse_host_port(bad).status().code(), Code::kInvalidArgument) << bad;
  }
}

TEST(StoreAddressText, ParsesAndRefuses) {
  EXPECT_EQ(parse_store_address({"unix:x"})->unix_name, "x");
  EXPECT_EQ(parse_store_address({"tcp:[::1]:7"})->tcp, (HostPort{"::1", 7}));
  EXPECT_TRUE(parse_store_endpoint("unix:").ok());
  for (const char* bad : {"", "unix:", "tcp:", "tcp:host", "udp:host:1", "host:1"}) {
    EXPECT_EQ(parse_store_address({bad}).status().code(), Code::kInvalidArgument) << bad;
  }
  EXPECT_FALSE(unix_address(std::string(200, 'x')).ok()) << "longer than a socket name can be";
}

TEST(InterfaceAddress, KnowsLoopbackAndListsTheOthers) {
  EXPECT_EQ(*interface_address("lo"), "127.0.0.1");
  const auto missing = interface_address("no-such-interface");
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_NE(missing.status().message().find("lo"), std::string::npos);
}

TEST(Resolve, NamesAHostThatDoesNotExist) {
  const auto found = resolve({"no-such-host.invalid", 1});
  EXPECT_EQ(found.status().code(), Code::kNotFound);
  EXPECT_NE(found.status().message().find("no-such-host.invalid"), std::string::npos);
}

TEST(ListenTcp, SkipsOccupiedPorts) {
  const auto first = listen_tcp({"127.0.0.1", 0}, {});
  ASSERT_TRUE(first.ok());
  const std::uint16_t taken = parse_host_port(local_address_of(first->get())->to_string())->port;
  if (taken > 65000) GTEST_SKIP() << "machine: the system chose a port without room above it";
  const PortRange range{taken, static_cast<std::uint16_t>(taken + 200)};
  const auto second = listen_tcp({"127.0.0.1", 0}, range);
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  const std::uint16_t port = parse_host_port(local_address_of(second->get())->to_string())->port;
  EXPECT_GT(port, range.first);
  EXPECT_LE(port, range.last);
  EXPECT_EQ(listen_tcp({"127.0.0.1", 0}, {5, 4}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(listen_tcp({"192.0.2.1", 0}, {}).status().code(), Code::kIo) << "not an own address";
}

TEST(PollTimeout, RoundsUpAndIsBounded) {
  const TimePoint now{1s};
  EXPECT_EQ(poll_timeout(now, now, 20), 0);
  EXPECT_EQ(poll_timeout(now, now - 1s, 20), 0);
  EXPECT_EQ(poll_timeout(now, now + 1us, 20), 1);
  EXPECT_EQ(poll_timeout(now, now + 5ms, 20), 5);
  EXPECT_EQ(poll_timeout(now, TimePoint::max(), 20), 20);
}

}  // namespace
}  // namespace stormo::transport
