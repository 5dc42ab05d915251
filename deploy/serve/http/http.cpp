#include "deploy/serve/http/http.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "deploy/serve/http/http_connection.h"

namespace specdec::deploy {

using boost::system::error_code;

struct HttpServer::Impl {
  Impl(const ServeLimits& limits, int io, int work) : workers(static_cast<size_t>(work)), io_threads(io) {
    shared.limits = limits;
    shared.workers = &workers;
  }

  using Acceptor = net::basic_socket_acceptor<net::generic::stream_protocol>;
  struct Listener {
    Listener(Acceptor a, HttpHandler& h, bool is_tcp, const TlsIdentity* i, size_t places)
        : acceptor(std::move(a)), handler(h), tcp(is_tcp), identity(i), table(places) {}
    Acceptor acceptor;
    HttpHandler& handler;
    bool tcp;
    const TlsIdentity* identity;  // null: plain HTTP
    ConnectionTable table;
  };

  void accept_loop(Listener& listener) {
    net::co_spawn(listener.acceptor.get_executor(), [this, &listener] { return accept(listener); }, net::detached);
  }
  net::awaitable<void> accept(Listener& listener);
  void warn_of_accept(const error_code& ec);
  void add(ByteStream::Socket socket, std::string peer, Listener& listener);
  template <class F>
  void for_each(F&& f);

  ConnectionShared shared;
  net::io_context context;
  net::executor_work_guard<net::io_context::executor_type> guard{context.get_executor()};
  FairWorkers workers;
  int io_threads;
  std::list<Listener> listeners;
  std::vector<std::filesystem::path> socket_files;
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::optional<std::chrono::steady_clock::time_point> warned;  // when warn_of_accept() last logged; guarded by `mutex`
  bool stopped = false;                                         // true: newly accepted connections are closed at once
};

// Returns the address by which connections of one client are counted. For IPv6 this is the first 64 bits, because one
// customer usually has all addresses with the same prefix. An IPv4-mapped IPv6 address is counted as the IPv4 address.
// All processes that connect to a Unix socket count as one peer.
std::string peer_of(const ByteStream::Socket& socket) {
  error_code ec;
  const auto remote = socket.remote_endpoint(ec);
  const auto* address = reinterpret_cast<const sockaddr*>(remote.data());
  if (ec || (address->sa_family != AF_INET && address->sa_family != AF_INET6)) return "";
  if (address->sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
    return {reinterpret_cast<const char*>(&v4), sizeof v4};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return {reinterpret_cast<const char*>(&v6) + 12, 4};  // IPv4 client, IPv6 listener
  return {reinterpret_cast<const char*>(&v6), sizeof v6 / 2};
}

// Logs that accept() fails, at most once a minute, because it may fail many times a second.
void HttpServer::Impl::warn_of_accept(const error_code& ec) {
  const auto now = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex);
    if (warned && now - *warned < std::chrono::minutes(1)) return;
    warned = now;
  }
  log(LogLevel::kWarn, "accepting a connection failed: " + ec.message() +
                           " (the next warning of this kind comes in a minute at the earliest)");
}

net::awaitable<void> HttpServer::Impl::accept(Listener& listener) {
  for (;;) {
    error_code ec;
    ByteStream::Socket socket(net::make_strand(context));
    co_await listener.acceptor.async_accept(socket, net::redirect_error(net::use_awaitable, ec));
    if (ec == net::error::operation_aborted || ec == net::error::bad_descriptor) co_return;
    if (ec) {
      // The usual cause is a lack of file descriptors. So an idle connection is told to close, which takes a moment.
      const bool freed = std::any_of(listeners.begin(), listeners.end(),
                                     [](Listener& other) { return other.tcp && other.table.free_descriptor(); });
      warn_of_accept(ec);
      net::steady_timer pause(context, std::chrono::milliseconds(freed ? 5 : 100));
      co_await pause.async_wait(net::redirect_error(net::use_awaitable, ec));
      continue;
    }
    std::string peer = peer_of(socket);
    if (!listener.table.make_room(peer)) {
      const HttpReply reply = error_reply(too_many_connections(), "");
      const std::string text =
          "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\nRetry-After: "
          "1\r\nContent-Length: " +
          std::to_string(reply.body.size()) + "\r\n\r\n" + reply.body;
      // The text fits the empty send buffer of a new socket, so send() never blocks. With TLS no reply is sent, because
      // the handshake would block.
      if (!listener.identity &&
          ::send(socket.native_handle(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        log(LogLevel::kDebug, "a surplus connection was closed unanswered");
      listener.handler.replied({}, 503);
      continue;
    }
    if (listener.tcp) socket.set_option(net::ip::tcp::no_delay(true), ec);
    add(std::move(socket), std::move(peer), listener);
  }
}

void HttpServer::Impl::add(ByteStream::Socket socket, std::string peer, Listener& listener) {
  const auto connection = std::make_shared<Connection>(ByteStream(std::move(socket), listener.identity),
                                                       std::move(peer), listener.handler, shared);
  {
    const std::lock_guard lock(mutex);
    if (stopped) return;
    listener.table.add(connection);
  }
  connection->start();
}

template <class F>
void HttpServer::Impl::for_each(F&& f) {
  for (const Listener& listener : listeners)
    listener.table.for_each([&f](Seated& seated) { f(static_cast<Connection&>(seated)); });
}

HttpServer::HttpServer(const ServeLimits& limits, int io_threads, int worker_threads)
    : impl_(std::make_unique<Impl>(limits, io_threads, worker_threads)) {}

HttpServer::~HttpServer() { stop(); }

int HttpServer::listen(const std::string& host, int port, HttpHandler& handler, const TlsIdentity* identity) {
  error_code ec;
  net::ip::tcp::resolver resolver(impl_->context);
  const auto found = resolver.resolve(host, std::to_string(port), net::ip::tcp::resolver::passive, ec);
  if (ec || found.empty())
    throw Error(ErrorKind::kUsage, "--host: '" + host + "' is no address of this machine: " + ec.message());
  const net::ip::tcp::endpoint endpoint = *found.begin();
  net::basic_socket_acceptor<net::generic::stream_protocol> acceptor(net::make_strand(impl_->context));
  acceptor.open(net::generic::stream_protocol(endpoint.protocol()), ec);
  if (!ec) acceptor.set_option(net::socket_base::reuse_address(true), ec);
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec) acceptor.listen(net::socket_base::max_listen_connections, ec);
  if (ec) {
    const std::string hint = ec == net::error::address_in_use ? " (give another --port, or 0 for a free one)" : "";
    throw Error(ErrorKind::kIo,
                "--port: cannot listen on " + host + ":" + std::to_string(port) + ": " + ec.message() + hint);
  }
  const auto local = acceptor.local_endpoint();
  // sin_port and sin6_port are at the same offset, so this reads the port for both IPv4 and IPv6.
  const auto* address = reinterpret_cast<const sockaddr_in*>(local.data());
  const int bound = ntohs(address->sin_port);
  impl_->listeners.emplace_back(std::move(acceptor), handler, true, identity, impl_->shared.limits.connections);
  return bound;
}

void HttpServer::listen_unix(const std::filesystem::path& path, HttpHandler& handler) {
  const std::string where = "--admin-socket: " + path.string();
  if (path.string().size() >= sizeof(sockaddr_un{}.sun_path))
    throw Error(ErrorKind::kUsage, where + ": longer than a Unix socket's path may be (107 bytes)");
  const net::local::stream_protocol::endpoint endpoint(path.string());
  error_code ec;
  net::local::stream_protocol::socket probe(impl_->context);
  probe.connect(endpoint, ec);
  if (!ec) throw Error(ErrorKind::kIo, where + ": another server answers on it");
  struct stat info{};
  if (::lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) throw Error(ErrorKind::kUsage, where + ": exists and is no socket");
    ::unlink(path.c_str());
  }
  net::basic_socket_acceptor<net::generic::stream_protocol> acceptor(net::make_strand(impl_->context));
  acceptor.open(net::generic::stream_protocol(endpoint.protocol()), ec);
  // The mode is set between bind() and listen(), before any client can connect.
  if (!ec) acceptor.bind(endpoint, ec);
  if (!ec && ::chmod(path.c_str(), 0600) != 0) ec = error_code(errno, boost::system::system_category());
  if (!ec) acceptor.listen(net::socket_base::max_listen_connections, ec);
  if (ec) throw Error(ErrorKind::kIo, where + ": cannot listen: " + ec.message());
  impl_->socket_files.push_back(path);
  impl_->listeners.emplace_back(std::move(acceptor), handler, false, nullptr, impl_->shared.limits.admin_connections);
}

void HttpServer::start() {
  for (Impl::Listener& listener : impl_->listeners) impl_->accept_loop(listener);
  for (int i = 0; i < impl_->io_threads; ++i)
    impl_->threads.emplace_back([this] {
      // OpenSSL writes to sockets without MSG_NOSIGNAL, so SIGPIPE is blocked: a client may have disconnected.
      sigset_t pipe;
      sigemptyset(&pipe);
      sigaddset(&pipe, SIGPIPE);
      ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
      impl_->context.run();
    });
}

void HttpServer::stop_accepting() {
  impl_->shared.closing.store(true);
  for (Impl::Listener& listener : impl_->listeners)
    net::post(listener.acceptor.get_executor(), [&listener] {
      error_code ignored;
      listener.acceptor.close(ignored);
    });
  impl_->for_each([](Connection& connection) { connection.close_if_idle(); });
}

void HttpServer::stop() {
  if (impl_->threads.empty()) return;
  stop_accepting();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopped = true;
  }
  impl_->for_each([](Connection& connection) { connection.close_now(); });
  impl_->guard.reset();
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->threads.clear();
  impl_->workers.stop();
  for (const auto& path : impl_->socket_files) ::unlink(path.c_str());
  impl_->socket_files.clear();
}

size_t HttpServer::connections() const {
  size_t open = 0;
  for (const Impl::Listener& listener : impl_->listeners) open += listener.table.open();
  return open;
}

}  // namespace specdec::deploy
