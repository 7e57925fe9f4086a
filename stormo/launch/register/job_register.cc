#include <stormo/launch/register/job_register.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include <stormo/base/temporary_folder.h>
#include <stormo/launch/process/spawn.h>
#include <stormo/membership/acceptor/register_server.h>
#include <stormo/transport/call/fields.h>
#include <stormo/transport/net/handshake.h>
#include <stormo/transport/net/socket.h>

namespace stormo::launch {
namespace {

/// It is there when it answers, or has no disk.
constexpr int kAnswerMs = 10'000;
constexpr int kEndMs = 1000;
constexpr int kLookMs = 200;  // for members
constexpr std::size_t kMaxPacket = 4096;
// The first byte of a packet says what it is.
constexpr char kAddress = 'a', kFailure = 'f', kLine = 'l', kEnd = 'e';

/// An order, as it is sent.
struct Order {
  std::string job;
  std::int32_t index = 0, count = 1;
  std::string host;
  transport::PortRange ports;
  std::string secret;
};
void fields(auto& visit, transport::Like<Order> auto& order) {
  visit("register", order.job, order.index, order.count, order.host, order.ports.first,
        order.ports.last, order.secret);
}

void send_packet(int fd, char kind, std::string_view text) {
  const std::string packet = kind + std::string(text.substr(0, kMaxPacket - 1));
  [[maybe_unused]] const ssize_t n = ::send(fd, packet.data(), packet.size(), MSG_NOSIGNAL);
}

/// Empty at the end of the connection, and with MSG_DONTWAIT when there is none.
std::string receive_packet(int fd, int flags = 0) {
  std::string packet(kMaxPacket, '\0');
  ssize_t n = 0;
  do n = ::recv(fd, packet.data(), packet.size(), flags);
  while (n < 0 && errno == EINTR);
  packet.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return packet;
}

struct Acceptor {
  TemporaryFolder folder;
  std::unique_ptr<membership::RegisterServer> server{};  // ends before its folder is removed
};

Result<Acceptor> make_acceptor(const std::string& packet, int control) {
  STORMO_ASSIGN_OR_RETURN(Order order, transport::decode<Order>("launcher", packet));
  auto secret = transport::Secret::from_hex(order.secret);
  transport::cleanse(order.secret);
  STORMO_RETURN_IF_ERROR(secret.status());
  STORMO_ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::create("stormo-register-"));
  STORMO_ASSIGN_OR_RETURN(
      membership::AcceptorFile file,
      membership::AcceptorFile::create(
          folder.path(), {.job = order.job, .index = order.index, .count = order.count},
          membership::Crash::kEndsTheAcceptor));
  Acceptor out{.folder = std::move(folder)};
  STORMO_ASSIGN_OR_RETURN(out.server,
                          membership::RegisterServer::start(
                              std::move(file), {.address = {.host = order.host, .port = 0},
                                                .ports = order.ports,
                                                .secret = *std::move(secret),
                                                .on_event = [control](const std::string& line) {
                                                  send_packet(control, kLine, line);
                                                }}));
  return out;
}

/// The process, until it is not needed any more.
void serve_until_the_end(int control) {
  const std::string order = receive_packet(control);
  if (order.empty()) return;
  const Result<Acceptor> acceptor = make_acceptor(order, control);
  if (!acceptor.ok()) return send_packet(control, kFailure, acceptor.status().message());
  send_packet(control, kAddress, transport::to_string(acceptor->server->address()));
  if (!receive_packet(control).empty()) return;
  // nobody has told the end: members stay connected from their first question on
  while (acceptor->server->connections() > 0) ::poll(nullptr, 0, kLookMs);
}

/// Nothing else of the launcher stays open: whoever reads its output must see its end.
[[noreturn]] void become_register(int control) {
  ::setsid();
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::prctl(PR_SET_NAME, "stormo-register");
  const int null = ::open("/dev/null", O_RDWR);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(null, standard);
  constexpr int kControl = STDERR_FILENO + 1;
  if (control != kControl) ::dup2(control, kControl);
  ::syscall(SYS_close_range, static_cast<unsigned>(kControl) + 1, ~0u, 0);
  serve_until_the_end(kControl);
  ::_exit(0);
}

}  // namespace

std::string random_job_name() {
  constexpr std::size_t kBytes = 8;
  const transport::Nonce random = transport::random_nonce();
  std::string name;
  for (std::size_t i = 0; i < kBytes; ++i) {
    name += fmt::format("{:02x}", std::to_integer<int>(random[i]));
  }
  return name;
}

Result<std::unique_ptr<JobRegister>> JobRegister::start() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return errno_error("socketpair");
  }
  Descriptor own(ends[0]);
  const Descriptor other(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return errno_error("start the register of members");
  if (pid == 0) become_register(other.get());
  note_child(pid);
  return std::unique_ptr<JobRegister>(new JobRegister(pid, std::move(own)));
}

Result<std::string> JobRegister::serve(const Options& options) {
  Order order{.job = options.job,
              .index = options.index,
              .count = options.count,
              .host = options.host,
              .ports = options.ports,
              .secret = options.secret.to_hex()};
  std::string packet = transport::encode(order);
  const ssize_t sent = ::send(control_.get(), packet.data(), packet.size(), MSG_NOSIGNAL);
  transport::cleanse(packet);
  transport::cleanse(order.secret);
  if (sent < 0) return errno_error("the register of members");
  pollfd answers{control_.get(), POLLIN, 0};
  const std::string answer =
      ::poll(&answers, 1, kAnswerMs) > 0 ? receive_packet(control_.get()) : "";
  if (answer.starts_with(kAddress)) return answer.substr(1);
  return io_error("the register of members: " +
                  (answer.empty() ? "its process does not answer" : answer.substr(1)));
}

std::vector<std::string> JobRegister::lines() {
  std::vector<std::string> out;
  for (std::string packet; !(packet = receive_packet(control_.get(), MSG_DONTWAIT)).empty();) {
    out.push_back(packet.substr(1));
  }
  return out;
}

JobRegister::~JobRegister() {
  send_packet(control_.get(), kEnd, "");
  if (const Result<Descriptor> process = open_process(pid_); process.ok()) {
    pollfd ended{process->get(), POLLIN, 0};
    ::poll(&ended, 1, kEndMs);
  }
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  forget_child(pid_);
}

}  // namespace stormo::launch
