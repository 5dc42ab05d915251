#include "deploy/serve/http_connection.h"

#include <sys/socket.h>

#include <boost/beast/http.hpp>
#include <cerrno>
#include <random>

#include "base/log.h"

namespace specdec::deploy {

namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

namespace {

constexpr size_t kLingerBytes = 32 << 20;
constexpr double kLingerSeconds = 5;

std::chrono::steady_clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

// Makes an unpredictable id of 128 random bits, so that one client cannot name another's request.
std::string request_id() {
  thread_local std::random_device source;
  std::string id = "req-";
  for (int i = 0; i < 4; ++i) {
    uint32_t bits = source();
    for (int digit = 0; digit < 8; ++digit, bits >>= 4) id.push_back("0123456789abcdef"[bits & 15]);
  }
  return id;
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Message>
void set_common(Message& message, const std::string& content_type, const std::string& request_id, bool keep_alive) {
  message.set(http::field::server, "specdec");
  message.set(http::field::content_type, content_type);
  message.set(http::field::cache_control, "no-store");
  message.set("X-Content-Type-Options", "nosniff");
  if (!request_id.empty()) message.set("X-Request-Id", request_id);
  message.keep_alive(keep_alive);
}

}  // namespace

HttpReply error_reply(const ApiError& error, const std::string& id) {
  HttpReply reply;
  reply.status = error.status;
  reply.body = error_body(error, id);
  if (error.retry_after_seconds > 0)
    reply.headers.emplace_back("Retry-After", std::to_string(error.retry_after_seconds));
  return reply;
}

Connection::Connection(Socket socket, std::string peer, HttpHandler& handler, ConnectionShared& shared)
    : socket_(std::move(socket)),
      peer_(std::move(peer)),
      handler_(handler),
      shared_(shared),
      deadline_(socket_.get_executor()),
      wake_(socket_.get_executor()),
      since_(steady_seconds()),
      reader_(shared.limits) {}

Seat Connection::seat() const { return {peer_, phase_.load(), since_.load()}; }

void Connection::enter(Phase phase) {
  since_.store(steady_seconds());
  phase_.store(phase);
}

void Connection::give_way() {
  net::post(socket_.get_executor(), [self = shared_from_this()] {
    error_code ignored;
    if (self->phase_.load() != Phase::kAnswering) self->socket_.close(ignored);
    self->leaves_ = true;  // it may be answering by now: then it closes after the reply
  });
}

void Connection::start() {
  net::co_spawn(
      socket_.get_executor(), [self = shared_from_this()] { return self->run(); },
      [self = shared_from_this()](std::exception_ptr error) {
        if (!error) return;
        try {
          std::rethrow_exception(error);
        } catch (const std::exception& e) {
          log(LogLevel::kError, std::string("a connection ended by an exception: ") + e.what());
        }
      });
}

void Connection::close_if_idle() {
  net::post(socket_.get_executor(), [self = shared_from_this()] {
    error_code ignored;
    if (self->phase_.load() == Phase::kIdle) self->socket_.close(ignored);
  });
}

void Connection::close_now() {
  net::post(socket_.get_executor(), [self = shared_from_this()] {
    self->closed_ = self->gone_ = true;
    error_code ignored;
    self->socket_.close(ignored);
    self->wake_.cancel();
  });
}

// Sets the time limit of the running operation, which fails with operation_aborted when it is exceeded.
void Connection::arm(double seconds) {
  timed_out_ = false;
  const uint64_t epoch = ++deadline_epoch_;
  deadline_.expires_after(to_duration(seconds));
  deadline_.async_wait([self = shared_from_this(), epoch](error_code ec) {
    if (ec || epoch != self->deadline_epoch_) return;
    self->timed_out_ = true;
    error_code ignored;
    self->socket_.cancel(ignored);
  });
}

void Connection::disarm() {
  ++deadline_epoch_;
  deadline_.cancel();
}

net::awaitable<void> Connection::run() {
  const auto self = shared_from_this();
  After after = After::kNext;
  while (after == After::kNext) {
    after = co_await one_request();
    first_ = false;
  }
  disarm();
  error_code ignored;
  socket_.close(ignored);
}

net::awaitable<Connection::After> Connection::one_request() {
  request_ = {};
  keep_alive_ = false;
  reader_.next();
  request_.id = request_id();
  if (reader_.empty()) {
    // A new connection gets the time limit of a header; a kept one may be idle for longer.
    enter(Phase::kIdle);
    if (!first_ && shared_.closing.load()) co_return After::kClose;
    arm(first_ ? shared_.limits.header_seconds : shared_.limits.idle_seconds);
    if (!co_await read_some()) co_return After::kClose;
  }
  enter(Phase::kReading);
  const bool head_ok = co_await read_head();
  if (!head_ok) co_return After::kClose;

  enter(Phase::kAnswering);
  std::optional<HttpReply> early = handler_.answer_head(request_);
  if (early) {
    // An unread body cannot be distinguished from the next request, so close the connection and read the body away.
    const bool close = !keep_alive() || request_.has_body;
    // No work was done for this request. So while the reply is written, the connection may be closed for a newcomer,
    // like one that is still sending its request.
    enter(Phase::kReading);
    co_await write_reply(std::move(*early), close);
    if (close) co_await linger();
    co_return close || !keep_alive_ ? After::kClose : After::kNext;
  }
  enter(Phase::kReading);
  const bool body_ok = co_await read_body();
  if (!body_ok) co_return After::kClose;
  disarm();
  enter(Phase::kAnswering);
  std::shared_ptr<Exchange> exchange = co_await respond();
  After after = co_await answer(std::move(exchange));
  co_return after;
}

// Has the handler process the whole request on a worker thread.
net::awaitable<std::shared_ptr<Exchange>> Connection::respond() {
  const auto self = shared_from_this();
  auto exchange = std::make_shared<std::shared_ptr<Exchange>>();
  auto request = std::make_shared<HttpRequest>(request_);
  request->body = reader_.take_body();
  request_.held.reset();  // from here on only the handler's copy has the hold
  const bool large = request->body.size() > shared_.limits.small_body_bytes;
  const auto start = [&](auto handler) {
    auto resume = std::make_shared<decltype(handler)>(std::move(handler));
    // Keeps the I/O threads running until the result is posted.
    auto strand = net::make_work_guard(socket_.get_executor());
    shared_.workers->submit({request_.party, large, [this, self, exchange, request, resume, strand]() mutable {
                               *exchange = handler_.respond(std::move(*request));
                               net::post(strand.get_executor(), [resume] { std::move (*resume)(); });
                             }});
  };
  co_await net::async_initiate<const net::use_awaitable_t<>, void()>(start, net::use_awaitable);
  co_return std::move(*exchange);
}

net::awaitable<bool> Connection::read_some() {
  error_code ec;
  const auto room = reader_.prepare();
  const size_t bytes = co_await socket_.async_read_some(room, net::redirect_error(net::use_awaitable, ec));
  if (!ec) reader_.commit(bytes);
  co_return !ec;
}

net::awaitable<bool> Connection::read_head() {
  using State = RequestReader::State;
  arm(shared_.limits.header_seconds);
  State state = reader_.read_head();
  while (state == State::kHead) {
    if (!co_await read_some()) {
      if (timed_out_) co_await refuse(request_timeout());
      co_return false;
    }
    state = reader_.read_head();
  }
  if (state == State::kFaulty) {
    co_await refuse(reader_.fault());
    co_return false;
  }
  static_cast<RequestHead&>(request_) = reader_.head();
  keep_alive_ = request_.keep_alive;
  co_return true;
}

net::awaitable<bool> Connection::read_body() {
  using State = RequestReader::State;
  if (!request_.expect.empty() && request_.version >= 11) {  // ignored for older clients (RFC 9110 10.1.1)
    if (!beast::iequals(request_.expect, "100-continue")) {
      co_await refuse(unmet_expectation());
      co_return false;
    }
    static constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";
    error_code ec;
    arm(shared_.limits.write_seconds);
    const auto bytes = net::buffer(kContinue, sizeof kContinue - 1);
    co_await net::async_write(socket_, bytes, net::redirect_error(net::use_awaitable, ec));
    if (ec) co_return false;
  }
  if (!request_.has_body) co_return true;
  arm(shared_.limits.body_seconds);
  State state = reader_.read_body();
  while (state == State::kBody) {
    if (!co_await read_some()) {
      if (timed_out_) co_await refuse(request_timeout());
      co_return false;
    }
    state = reader_.read_body();
    // Small bodies are not counted, since the number of connections bounds them.
    const size_t bytes = reader_.body_bytes();
    if (request_.held && bytes > shared_.limits.small_body_bytes && !request_.held->resize(bytes)) {
      co_await refuse(too_many_bytes());
      co_return false;
    }
  }
  if (state == State::kWhole) co_return true;
  co_await refuse(reader_.fault());
  co_return false;
}

net::awaitable<Connection::After> Connection::answer(std::shared_ptr<Exchange> exchange) {
  using Kind = Exchange::Turn::Kind;
  gone_ = closed_;
  exchange->on_wake([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self) net::post(self->socket_.get_executor(), [self] { self->wake_.cancel(); });
  });
  const uint64_t epoch = ++watch_epoch_;
  net::co_spawn(
      socket_.get_executor(), [self = shared_from_this(), epoch] { return self->watch(epoch); }, net::detached);
  const auto end = std::chrono::steady_clock::now() + to_duration(shared_.limits.total_seconds);
  bool streaming = false, ok = true;
  Exchange::Turn turn;
  for (;;) {
    turn = exchange->next();
    if (turn.kind == Kind::kReply || turn.kind == Kind::kEnd) break;
    if (turn.kind == Kind::kData) {
      if (!streaming) ok = co_await write_stream_head();
      streaming = true;
      if (ok) ok = co_await write_data(std::move(turn.data), false);
    } else if (!gone_) {  // else the connection was closed during respond(), and nothing would wake it
      error_code ec;
      wake_.expires_at(end);
      co_await wake_.async_wait(net::redirect_error(net::use_awaitable, ec));
    }
    if (gone_ || !ok || std::chrono::steady_clock::now() >= end) {
      exchange->abandon();
      break;
    }
  }
  // Ends the watcher: the socket has no other pending operation now.
  ++watch_epoch_;
  error_code ignored;
  socket_.cancel(ignored);
  if (turn.kind == Kind::kEnd && ok && streaming) ok = co_await write_data({}, true);
  if (turn.kind == Kind::kReply) {
    const bool close = !keep_alive();
    co_await write_reply(std::move(turn.reply), close);
    co_return close || !keep_alive_ ? After::kClose : After::kNext;
  }
  if (turn.kind != Kind::kEnd && !streaming && !gone_) co_await refuse(request_timeout());
  co_return turn.kind == Kind::kEnd && ok && keep_alive() && request_.version == 11 ? After::kNext : After::kClose;
}

// Detects that the client disconnects while the engine works: the socket becomes readable with nothing to read. The
// watch ends if bytes of a next request arrive. A client that only shuts down its sending side counts as disconnected.
net::awaitable<void> Connection::watch(uint64_t epoch) {
  const auto self = shared_from_this();
  error_code ec;
  co_await socket_.async_wait(Socket::wait_read, net::redirect_error(net::use_awaitable, ec));
  if (ec || epoch != watch_epoch_) co_return;
  char byte = 0;
  const ssize_t n = ::recv(socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) co_return;
  gone_ = true;
  wake_.cancel();
}

net::awaitable<void> Connection::write_reply(HttpReply reply, bool close) {
  error_code ec;
  const bool head = request_.method == "HEAD";
  http::response<http::string_body> response;
  response.version(request_.version == 10 ? 10 : 11);
  response.result(static_cast<unsigned>(reply.status));
  set_common(response, reply.content_type, request_.id, !close);
  for (const auto& [name, value] : reply.headers) response.set(name, value);
  if (reply.status != 204) response.content_length(reply.body.size());
  response.body() = std::move(reply.body);
  handler_.replied(request_, reply.status);
  arm(shared_.limits.write_seconds);
  http::response_serializer<http::string_body> serializer(response);
  if (head)
    co_await http::async_write_header(socket_, serializer, net::redirect_error(net::use_awaitable, ec));
  else
    co_await http::async_write(socket_, serializer, net::redirect_error(net::use_awaitable, ec));
  disarm();
  if (ec || close) {
    keep_alive_ = false;
    error_code ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
  }
}

net::awaitable<bool> Connection::write_stream_head() {
  error_code ec;
  http::response<http::empty_body> response;
  response.version(request_.version == 10 ? 10 : 11);
  response.result(http::status::ok);
  set_common(response, "text/event-stream; charset=utf-8", request_.id, keep_alive() && request_.version == 11);
  response.set("X-Accel-Buffering", "no");
  response.chunked(request_.version == 11);
  handler_.replied(request_, 200);
  arm(shared_.limits.write_seconds);
  http::response_serializer<http::empty_body> serializer(response);
  co_await http::async_write_header(socket_, serializer, net::redirect_error(net::use_awaitable, ec));
  disarm();
  co_return !ec;
}

net::awaitable<bool> Connection::write_data(std::string data, bool last) {
  error_code ec;
  arm(shared_.limits.write_seconds);
  if (request_.version == 11 && last) {
    const auto chunk = http::make_chunk_last();
    co_await net::async_write(socket_, chunk, net::redirect_error(net::use_awaitable, ec));
  } else if (request_.version == 11) {
    const auto chunk = http::make_chunk(net::const_buffer(data.data(), data.size()));
    co_await net::async_write(socket_, chunk, net::redirect_error(net::use_awaitable, ec));
  } else if (!last) {
    const auto bytes = net::buffer(data);
    co_await net::async_write(socket_, bytes, net::redirect_error(net::use_awaitable, ec));
  }
  disarm();
  co_return !ec;
}

net::awaitable<void> Connection::refuse(ApiError error) {
  HttpReply reply = error_reply(error, request_.id);
  request_.held.reset();
  co_await write_reply(std::move(reply), true);
  co_await linger();
}

// Closing with unread bytes would reset the connection and could discard the reply, so some of them are read first.
net::awaitable<void> Connection::linger() {
  error_code ec;
  std::string sink(64 << 10, '\0');
  size_t total = 0;
  enter(Phase::kReading);
  arm(kLingerSeconds);
  while (!ec && total < kLingerBytes) {
    const auto room = net::buffer(sink);
    const size_t n = co_await socket_.async_read_some(room, net::redirect_error(net::use_awaitable, ec));
    total += n;
  }
  disarm();
}

}  // namespace specdec::deploy
