#include "tests/conformance/tcp_fabric.h"
#include "tests/conformance/transport_conformance.h"

namespace stormo::transport {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Tcp, TransportConformance,
    ::testing::Values(
        FabricFactory{"v4", [](int n) { return make_tcp_fabric(n, "127.0.0.1", false); }},
        FabricFactory{"v6_with_checksums", [](int n) { return make_tcp_fabric(n, "::1", true); }},
        FabricFactory{"three_sockets",
                      [](int n) {
                        return make_tcp_fabric(n, "127.0.0.1", {.checksum = true, .sockets = 3});
                      }}),
    fabric_name);

}  // namespace
}  // namespace stormo::transport
