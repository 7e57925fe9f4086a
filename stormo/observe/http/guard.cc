#include <stormo/observe/http/guard.h>

#include <arpa/inet.h>

#include <cstddef>
#include <string_view>

#include <stormo/base/text.h>
#include <stormo/transport/net/socket.h>

namespace stormo::observe {
namespace {

bool is_numeric(const std::string& host) {
  in_addr v4{};
  in6_addr v6{};
  return ::inet_pton(AF_INET, host.c_str(), &v4) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &v6) == 1;
}

/// Whether no other site can have this name: a number, "localhost", or what the user has named.
bool is_own_name(const std::string& header, const std::string& host_name) {
  const Result<transport::HostPort> address = transport::parse_host_port(header);
  if (!address.ok()) return false;
  const std::string host = lower_case(address->host);
  return is_numeric(host) || host == "localhost" || host == lower_case(host_name);
}

/// In a time that depends on the lengths alone.
bool is_equal(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

bool has_token(const std::string& authorization, const std::string& token) {
  constexpr std::string_view kScheme = "bearer ";
  const std::string_view text = authorization;
  return lower_case(text.substr(0, kScheme.size())) == kScheme &&
         is_equal(lower_case(text.substr(kScheme.size())), token);
}

}  // namespace

std::optional<HttpResponse> refusal_of(const HttpRequest& request, const HttpGuard& guard) {
  if (request.has_origin) {
    return HttpResponse{.status = 403, .body = "not for pages of other sites\n"};
  }
  const bool is_open = guard.token.empty();
  if (is_open && !request.host.empty() && !is_own_name(request.host, guard.host_name)) {
    return HttpResponse{.status = 403, .body = "ask for this host by its address\n"};
  }
  if (!is_open && !has_token(request.authorization, guard.token)) {
    return HttpResponse{.status = 401, .body = "a token is needed: Authorization: Bearer ...\n"};
  }
  if (request.method != "GET") return HttpResponse{.status = 405, .body = "only GET\n"};
  return std::nullopt;
}

}  // namespace stormo::observe
