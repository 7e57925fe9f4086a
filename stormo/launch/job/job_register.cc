#include <stormo/launch/job/job_register.h>

#include <fmt/format.h>

#include <cstddef>
#include <utility>

#include <stormo/transport/net/handshake.h>

namespace stormo::launch {

std::string random_job_name() {
  constexpr std::size_t kBytes = 8;
  const transport::Nonce random = transport::random_nonce();
  std::string name;
  for (std::size_t i = 0; i < kBytes; ++i) {
    name += fmt::format("{:02x}", std::to_integer<int>(random[i]));
  }
  return name;
}

Result<std::unique_ptr<JobRegister>> JobRegister::start(Options options) {
  STORMO_ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::create("stormo-register-"));
  std::unique_ptr<JobRegister> out(new JobRegister(std::move(folder)));
  STORMO_ASSIGN_OR_RETURN(
      membership::AcceptorFile file,
      membership::AcceptorFile::create(out->folder_.path(), {.job = std::move(options.job)},
                                       membership::Crash::kEndsTheJob));
  STORMO_ASSIGN_OR_RETURN(
      out->server_, membership::RegisterServer::start(
                        std::move(file), {.address = {.host = std::move(options.host), .port = 0},
                                          .ports = options.ports,
                                          .secret = std::move(options.secret),
                                          .on_event = std::move(options.on_event)}));
  return out;
}

std::string JobRegister::address() const {
  return "quorum://" + transport::to_string(server_->address());
}

}  // namespace stormo::launch
