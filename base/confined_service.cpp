#include "base/confined_service.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/socket_bytes.h"

namespace specdec {

namespace {

// The header sent before the bytes of a job or of an answer.
struct Head {
  uint64_t size = 0;
  uint64_t leaves = 0;  // in an answer: 1 if the worker has grown too much and exits after this answer
};

constexpr int kInherited = 3;  // number of the first descriptor after stdin, stdout and stderr

// Sends head and bytes in one system call if the socket allows it, because a second call would take as long as a short
// job.
bool send_message(int socket, Head head, std::string_view bytes) {
  head.size = bytes.size();
  iovec parts[] = {{&head, sizeof head}, {const_cast<char*>(bytes.data()), bytes.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  ssize_t sent = -1;
  while ((sent = ::sendmsg(socket, &message, MSG_NOSIGNAL)) < 0 && errno == EINTR) {
  }
  if (sent < 0) return false;
  const auto done = static_cast<size_t>(sent);
  if (done < sizeof head && !send_all(socket, reinterpret_cast<const char*>(&head) + done, sizeof head - done))
    return false;
  return send_all(socket, bytes.data() + (done < sizeof head ? 0 : done - sizeof head),
                  bytes.size() - (done < sizeof head ? 0 : done - sizeof head));
}

bool receive_message(int socket, Head& head, std::string& bytes) {
  if (!receive_all(socket, &head, sizeof head)) return false;
  bytes.resize(head.size);
  return receive_all(socket, bytes.data(), bytes.size());
}

// One byte that carries a descriptor over a socket. The object holds pointers to itself, so it cannot be copied or
// moved.
struct DescriptorMessage {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  DescriptorMessage() {
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;
};

bool pass(int socket, int descriptor) {
  DescriptorMessage out;
  cmsghdr* const header = CMSG_FIRSTHDR(&out.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  ssize_t sent = -1;
  while ((sent = ::sendmsg(socket, &out.message, MSG_NOSIGNAL)) < 0 && errno == EINTR) {
  }
  return sent == 1;
}

// Receives a descriptor over a socket. Returns -1 if the process at the other end has closed the socket.
int passed(int socket) {
  DescriptorMessage in;
  ssize_t received = -1;
  while ((received = ::recvmsg(socket, &in.message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {
  }
  const cmsghdr* const header = received == 1 ? CMSG_FIRSTHDR(&in.message) : nullptr;
  if (!header || header->cmsg_type != SCM_RIGHTS) return -1;
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  return descriptor;
}

// Limits the CPU time of the next job (0 = no limit): SIGPROF kills a worker whose job exceeds the limit. A worker that
// waits for a job uses no CPU time.
void allow_time(int cpu_seconds) {
  const itimerval limit{{0, 0}, {cpu_seconds, 0}};
  ::setitimer(ITIMER_PROF, &limit, nullptr);
}

[[noreturn]] void serve_jobs(int socket, const ChildLimits& limits, const ConfinedService::Work& work) {
  const uint64_t space = address_space_bytes();
  confine({limits.memory_bytes, 0, 0}, space);
  try {
    Head head;
    for (std::string job; receive_message(socket, head, job);) {
      allow_time(limits.cpu_seconds);
      const std::string answer = work(job);
      // Memory that this job did not free must not count against the next job, so a worker that has grown exits.
      const bool leaves = address_space_bytes() > space + limits.memory_bytes / 4;
      if (!send_message(socket, {0, leaves}, answer) || leaves) break;
    }
  } catch (...) {  // ends the worker; the caller notices that the socket closes without an answer
  }
  _exit(0);
}

// Runs the keeper process, which forks a worker for each socket that it receives over `orders`. The keeper closes the
// program's files, points stdin, stdout and stderr to /dev/null, and ignores the signals that stop the program. The
// keeper exits when the program exits.
[[noreturn]] void keep(int orders, const ChildLimits& limits, const ConfinedService::Work& work) {
  // SIGCHLD is ignored because nobody waits for workers.
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) std::signal(number, SIG_IGN);
  const int null = open("/dev/null", O_RDWR);
  for (int standard = 0; null >= 0 && standard < kInherited; ++standard) dup2(null, standard);
  if (orders > kInherited) ::close_range(kInherited, static_cast<unsigned>(orders) - 1, 0);
  ::close_range(static_cast<unsigned>(orders) + 1, ~0u, 0);
  for (int socket = passed(orders); socket >= 0; socket = passed(orders)) {
    if (fork() == 0) {
      close(orders);
      serve_jobs(socket, limits, work);
    }
    close(socket);  // if fork failed, the program finds its end of the socket closed
  }
  _exit(0);
}

Error no_process(const char* what) { return Error(ErrorKind::kIo, std::string(what) + ": " + std::strerror(errno)); }

}  // namespace

ConfinedService::ConfinedService(const ChildLimits& limits, size_t workers, Work work)
    : limits_(limits), most_(workers) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw no_process("socketpair");
  keeper_ = fork();
  if (keeper_ == 0) keep(ends[1], limits_, work);
  close(ends[1]);
  orders_ = ends[0];
  if (keeper_ > 0) return;
  const Error error = no_process("fork");
  close(orders_);
  throw error;
}

ConfinedService::~ConfinedService() {
  for (const int worker : idle_) close(worker);
  close(orders_);
  while (waitpid(keeper_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

bool ConfinedService::works() const {
  pollfd end{orders_, 0, 0};  // the keeper sends nothing on this socket, so poll can only report a hang-up
  return ::poll(&end, 1, 0) == 0;
}

int ConfinedService::start_worker() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw no_process("socketpair");
  const bool sent = pass(orders_, ends[1]);
  close(ends[1]);
  if (sent) {
    const timeval patience{limits_.wall_seconds, 0};  // 0 = waits for ever
    ::setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return ends[0];
  }
  close(ends[0]);
  throw Error(ErrorKind::kIo, "the process that keeps the workers for foreign input is gone: start the program again");
}

int ConfinedService::take_worker() {
  std::unique_lock lock(mutex_);
  freed_.wait(lock, [this] { return !idle_.empty() || started_ < most_; });
  if (!idle_.empty()) {
    const int worker = idle_.back();
    idle_.pop_back();
    return worker;
  }
  const int worker = start_worker();
  ++started_;
  return worker;
}

void ConfinedService::give_back(int worker, bool usable) {
  {
    const std::lock_guard lock(mutex_);
    if (usable)
      idle_.push_back(worker);
    else
      --started_;
  }
  if (!usable) close(worker);
  freed_.notify_one();
}

std::optional<std::string> ConfinedService::ask(std::string_view job) {
  const int worker = take_worker();
  Head head;
  std::string answer;
  const bool answered = send_message(worker, {}, job) && receive_message(worker, head, answer);
  give_back(worker, answered && !head.leaves);
  return answered ? std::optional(std::move(answer)) : std::nullopt;
}

}  // namespace specdec
