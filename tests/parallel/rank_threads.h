// Runs several ranks as threads of the test's process. A stop request counts for all of them.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "engine/parallel/ranks.h"

namespace specdec::testing {

// Turns off c10d's flight recorder, which keeps one unprotected map for all process groups of a process: a process has
// one group, and these tests have several, used by several threads at once.
inline const int kNoFlightRecorder = ::setenv("TORCH_FR_BUFFER_SIZE", "0", 1);

// Returns a port of this machine that nobody listens at.
inline int free_port() {
  const int file = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(file, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(file, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw Error(ErrorKind::kInternal, "no free port");
  ::close(file);
  return ntohs(address.sin_port);
}

inline parallel::Launch launch_of(int rank, int ranks, int port) {
  parallel::Launch launch;
  launch.launcher = "environment";
  launch.rank = launch.local_rank = rank;
  launch.ranks = launch.local_ranks = ranks;
  launch.address = "127.0.0.1";
  launch.port = port;
  return launch;
}

// Calls f(ranks) on each rank. Returns what each threw as an Error, "" for nothing.
inline std::vector<std::string> as_ranks(int count, const std::function<void(const parallel::Ranks&)>& f) {
  const int port = free_port();
  static const SystemClock clock;
  std::vector<std::string> errors(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const parallel::Ranks ranks(launch_of(rank, count, port), {}, clock);
        ranks.together([&] {
          f(ranks);
          return 0;
        });
      } catch (const std::exception& e) {
        errors[static_cast<size_t>(rank)] = e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  return errors;
}

}  // namespace specdec::testing
