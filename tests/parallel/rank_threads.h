// Runs several ranks as threads of the test's process. A stop request reaches all of them.
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

// Turns off c10d's flight recorder. It keeps one map without a lock for all process groups of a process. Real ranks
// have one group per process, but these tests have several groups in several threads.
inline const int kNoFlightRecorder = ::setenv("TORCH_FR_BUFFER_SIZE", "0", 1);

// Returns a TCP port of this machine at which nothing listens.
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

// Calls f(ranks) on each rank and waits for all. Returns the error text of each rank, "" without an error.
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
