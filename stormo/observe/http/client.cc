#include <stormo/observe/http/client.h>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include <stormo/base/text.h>
#include <stormo/observe/http/header_text.h>

namespace stormo::observe {
namespace {

constexpr std::string_view kNewline = "\r\n";

bool tells_to_wait(int error) { return error == EAGAIN || error == EINTR; }

Status no_answer() { return {Code::kCorrupt, "what it says is no HTTP"}; }
Status cut_off() { return {Code::kPeerLost, "the connection ended before the answer"}; }

/// "HTTP/1.1 200 OK"
std::optional<int> status_in(std::string_view line) {
  constexpr std::size_t kVersion = 9, kDigits = 3;  // "HTTP/1.1 "
  if (!line.starts_with("HTTP/1.") || line.size() < kVersion + kDigits || line[8] != ' ') {
    return std::nullopt;
  }
  return number_in<int>(line.substr(kVersion, kDigits));
}

}  // namespace

Result<std::optional<HttpResponse>> parse_response(std::string_view bytes, bool ended) {
  constexpr std::string_view kBegin = "HTTP/1.";
  constexpr std::string_view kEnd = "\r\n\r\n";
  if (!kBegin.starts_with(bytes.substr(0, kBegin.size()))) return no_answer();
  if (bytes.size() > kMaxAnswerBytes) return no_answer();
  const std::size_t head = bytes.find(kEnd);
  if (head == std::string_view::npos) {
    if (ended) return cut_off();
    return std::optional<HttpResponse>();
  }
  std::string_view lines = bytes.substr(0, head);
  const std::optional<int> status = status_in(lines.substr(0, lines.find(kNewline)));
  if (!status) return no_answer();
  HttpResponse out{.status = *status, .type = ""};
  std::optional<std::size_t> length;
  while (lines.find(kNewline) != std::string_view::npos) {
    lines.remove_prefix(lines.find(kNewline) + kNewline.size());
    const std::string_view line = lines.substr(0, lines.find(kNewline));
    const std::size_t colon = std::min(line.find(':'), line.size());
    const std::string_view value = trimmed(line.substr(std::min(colon + 1, line.size())));
    const std::string name = lower_case(line.substr(0, colon));
    if (name == "content-type") out.type = value;
    if (name != "content-length") continue;
    length = number_in<std::size_t>(value);
    if (!length || *length > kMaxAnswerBytes) return no_answer();
  }
  const std::string_view body = bytes.substr(head + kEnd.size());
  const bool whole = length ? body.size() >= *length : ended;
  if (!whole && ended) return cut_off();
  if (!whole) return std::optional<HttpResponse>();
  out.body = body.substr(0, length.value_or(body.size()));
  return std::optional(std::move(out));
}

Result<HttpGet> HttpGet::start(const Options& options) {
  const std::string host = transport::to_string(options.address);
  std::string request =
      fmt::format("GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", options.path, host);
  if (!options.token.empty()) request += fmt::format("Authorization: Bearer {}\r\n", options.token);
  STORMO_ASSIGN_OR_RETURN(std::vector<transport::SocketAddress> addresses,
                          transport::resolve(options.address));
  std::ranges::reverse(addresses);
  HttpGet get(std::move(addresses), request + "\r\n");
  STORMO_RETURN_IF_ERROR(get.connect_next({Code::kNotFound, "it has no address"}));
  return get;
}

/// `why`: the last one was not it.
Status HttpGet::connect_next(Status why) {
  while (!addresses_.empty()) {
    Result<Descriptor> socket = transport::start_connect(addresses_.back());
    addresses_.pop_back();
    if (socket.ok()) {
      socket_ = *std::move(socket);
      return {};
    }
    why = Status(Code::kNotFound, socket.status().message());
  }
  return why;
}

short HttpGet::events() const { return connected_ && request_.empty() ? POLLIN : POLLOUT; }

Result<bool> HttpGet::check_connected() {
  pollfd writable{socket_.get(), POLLOUT, 0};
  if (::poll(&writable, 1, 0) != 1) return false;
  const Status outcome = transport::connect_outcome(socket_.get());
  connected_ = outcome.ok();
  if (outcome.ok()) return true;
  STORMO_RETURN_IF_ERROR(connect_next({Code::kNotFound, outcome.message()}));
  return false;
}

Status HttpGet::send() {
  const ssize_t n =
      ::send(socket_.get(), request_.data(), request_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n >= 0) request_.erase(0, static_cast<std::size_t>(n));
  return n >= 0 || tells_to_wait(errno) ? Status() : cut_off();
}

/// Whether nothing more comes.
Result<bool> HttpGet::receive() {
  std::array<char, 16384> bytes;
  while (answer_.size() <= kMaxAnswerBytes) {
    const ssize_t n = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n < 0 && tells_to_wait(errno)) return false;
    if (n < 0) return cut_off();
    if (n == 0) return true;
    answer_.append(bytes.data(), static_cast<std::size_t>(n));
  }
  return false;
}

Result<std::optional<HttpResponse>> HttpGet::step() {
  if (!connected_) {
    STORMO_ASSIGN_OR_RETURN(const bool connected, check_connected());
    if (!connected) return std::optional<HttpResponse>();
  }
  if (!request_.empty()) STORMO_RETURN_IF_ERROR(send());
  STORMO_ASSIGN_OR_RETURN(const bool ended, receive());
  return parse_response(answer_, ended);
}

Result<HttpResponse> http_get(const HttpGet::Options& options, Deadline by) {
  STORMO_ASSIGN_OR_RETURN(HttpGet get, HttpGet::start(options));
  constexpr int kCapMs = 60'000;
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(std::optional<HttpResponse> answer, get.step());
    if (answer) return *std::move(answer);
    if (by.expired()) return Status(Code::kDeadlineExceeded, "it does not answer");
    pollfd ready{get.fd(), get.events(), 0};
    const TimePoint now = std::chrono::steady_clock::now();
    (void)::poll(&ready, 1, transport::poll_timeout(now, by.when(), kCapMs));
  }
}

}  // namespace stormo::observe
