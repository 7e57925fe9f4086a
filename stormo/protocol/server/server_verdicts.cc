#include <stormo/protocol/server/server_verdicts.h>

namespace stormo::protocol {

bool ServerVerdicts::complain(int from, int about) {
  const bool are_servers = from >= 0 && from < servers_ && from != about;
  if (!are_servers || is_lost(from)) return false;
  if (about != successor(from, servers_) && about != predecessor(from, servers_)) return false;
  return lose(about);
}

bool ServerVerdicts::lose(int server) {
  return server >= 0 && server < servers_ && lost_.insert(server).second;
}

}  // namespace stormo::protocol
