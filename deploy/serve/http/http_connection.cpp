#include "deploy/serve/http/http_connection.h"

#include <boost/beast/http.hpp>
#include <random>
#include <sstream>

#include "base/clock.h"
#include "base/format.h"
#include "base/log.h"

namespace specdec::deploy {

namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

namespace {

constexpr size_t kLingerBytes = 32 << 20;
constexpr double kLingerSeconds = 5;
constexpr auto kCancelAgain = std::chrono::milliseconds(50);

std::chrono::steady_clock::duration to_duration(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

// Makes an unpredictable id of 128 random bits, so that a client cannot guess the id of another client's request.
std::string request_id() {
  thread_local std::random_device source;
  std::string id = "req-";
  for (int i = 0; i < 4; ++i) {
    uint32_t bits = source();
    for (int digit = 0; digit < 8; ++digit, bits >>= 4) id.push_back("0123456789abcdef"[bits & 15]);
  }
  return id;
}

using Head = http::response<http::empty_body>;

Head make_head(const HttpRequest& request, int status, const std::string& content_type, bool keep_alive) {
  Head head;
  head.version(request.version == 10 ? 10 : 11);
  head.result(static_cast<unsigned>(status));
  head.set(http::field::server, "specdec");
  head.set(http::field::content_type, content_type);
  head.set(http::field::cache_control, "no-store");
  head.set("X-Content-Type-Options", "nosniff");
  if (!request.id.empty()) head.set("X-Request-Id", request.id);
  for (const auto& [name, value] : request.reply_headers) head.set(name, value);
  head.keep_alive(keep_alive);
  return head;
}

std::string text_of(const Head& head) {
  std::ostringstream text;
  text << head.base();
  return text.str();
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

Connection::Connection(ByteStream stream, std::string peer, HttpHandler& handler, ConnectionShared& shared)
    : stream_(std::move(stream)),
      peer_(std::move(peer)),
      handler_(handler),
      shared_(shared),
      deadline_(stream_.executor()),
      wake_(stream_.executor()),
      since_(SystemClock().seconds()),
      reader_(shared.limits) {}

Seat Connection::seat() const { return {peer_, phase_.load(), since_.load()}; }

void Connection::enter(Phase phase) {
  since_.store(SystemClock().seconds());
  phase_.store(phase);
}

void Connection::give_way() {
  net::post(stream_.executor(), [self = shared_from_this()] {
    if (self->phase_.load() != Phase::kAnswering) self->stream_.close();
    self->leaves_ = true;  // a connection that is answering closes after its reply
  });
}

void Connection::start() {
  net::co_spawn(
      stream_.executor(), [self = shared_from_this()] { return self->run(); },
      [self = shared_from_this()](std::exception_ptr error) {
        if (!error) return;
        self->disarm();  // the deadline timer restarts itself and holds a reference to this object
        self->stream_.close();
        try {
          std::rethrow_exception(error);
        } catch (const std::exception& e) {
          log(LogLevel::kError, std::string("a connection ended by an exception: ") + e.what());
        }
      });
}

void Connection::close_if_idle() {
  net::post(stream_.executor(), [self = shared_from_this()] {
    if (self->phase_.load() != Phase::kIdle) return;
    self->stream_.finish_sending();
    self->stream_.close();
  });
}

void Connection::close_now() {
  net::post(stream_.executor(), [self = shared_from_this()] {
    self->closed_ = self->gone_ = true;
    self->stream_.close();
    self->wake_.cancel();
  });
}

// Sets the time limit of the running operation, which ends with operation_aborted when the limit is exceeded.
void Connection::arm(double seconds) {
  timed_out_ = false;
  const uint64_t epoch = ++deadline_epoch_;
  deadline_.expires_after(to_duration(seconds));
  await_deadline(epoch);
}

void Connection::await_deadline(uint64_t epoch) {
  deadline_.async_wait([self = shared_from_this(), epoch](error_code ec) {
    if (ec || epoch != self->deadline_epoch_) return;
    self->timed_out_ = true;
    self->stream_.cancel();
    // cancel() misses an operation that is between two of its steps. So cancel() is called again a moment later.
    self->deadline_.expires_after(kCancelAgain);
    self->await_deadline(epoch);
  });
}

void Connection::disarm() {
  ++deadline_epoch_;
  deadline_.cancel();
}

net::awaitable<void> Connection::run() {
  const auto self = shared_from_this();
  After after = After::kNext;
  if (stream_.has_tls()) {
    const bool ready = co_await shake_hands();
    if (!ready) after = After::kClose;
  }
  while (after == After::kNext) {
    after = co_await one_request();
    first_ = false;
  }
  disarm();
  stream_.close();
}

// Performs the TLS handshake within the time limit of a header. Meanwhile the connection counts as idle, so it may be
// closed if the limit of connections is reached and a new client connects.
net::awaitable<bool> Connection::shake_hands() {
  arm(shared_.limits.header_seconds);
  const ByteStream::Handshake outcome = co_await stream_.handshake();
  if (outcome == ByteStream::Handshake::kDone) co_return true;
  if (outcome == ByteStream::Handshake::kPlainHttp) {
    request_.id = request_id();
    co_await refuse(https_expected());
  } else if (!timed_out_) {
    stream_.finish_sending();
    co_await linger();
  }
  co_return false;
}

net::awaitable<Connection::After> Connection::one_request() {
  request_ = {};
  keep_alive_ = false;
  reader_.next();
  request_.id = request_id();
  if (reader_.waits()) {
    // A new connection gets the time limit of a header; a connection that has had a request may be idle for longer.
    enter(Phase::kIdle);
    if (!first_ && shared_.closing.load()) co_return After::kClose;
    arm(first_ ? shared_.limits.header_seconds : shared_.limits.idle_seconds);
    while (reader_.waits())
      if (!co_await read_some()) co_return After::kClose;
  }
  enter(Phase::kReading);
  const bool head_ok = co_await read_head();
  if (!head_ok) co_return After::kClose;

  enter(Phase::kAnswering);
  std::optional<HttpReply> early = handler_.answer_head(request_);
  if (early) {
    // An unread body cannot be told from the next request, so the connection is closed, and linger() discards the body.
    const bool close = !keep_alive() || request_.has_body;
    // No work was done for this request. So while the reply is written, the connection counts as one that is still
    // sending its request, which may be closed if the limit of connections is reached and a new client connects.
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

// Runs HttpHandler::respond() with the whole request on a worker thread and waits for the result.
net::awaitable<std::shared_ptr<Exchange>> Connection::respond() {
  const auto self = shared_from_this();
  auto exchange = std::make_shared<std::shared_ptr<Exchange>>();
  auto request = std::make_shared<HttpRequest>(request_);
  request->body = reader_.take_body();
  request_.held.reset();  // now only the handler's copy of the request charges bytes to the budget
  const bool large = request->body.size() > shared_.limits.small_body_bytes;
  const auto start = [&](auto handler) {
    auto resume = std::make_shared<decltype(handler)>(std::move(handler));
    // The work guard keeps the I/O threads running until the result is posted.
    auto strand = net::make_work_guard(stream_.executor());
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
  const size_t bytes = co_await stream_.read_some(room, ec);
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
  if (!request_.expect.empty() && request_.version >= 11) {  // HTTP/1.0 clients do not use Expect (RFC 9110 10.1.1)
    if (!beast::iequals(request_.expect, "100-continue")) {
      co_await refuse(unmet_expectation());
      co_return false;
    }
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    error_code ec;
    arm(shared_.limits.write_seconds);
    co_await stream_.write(kContinue, {}, ec);
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
    // The bytes of small bodies are not charged to the budget: the limit of connections bounds them.
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
    if (self) net::post(self->stream_.executor(), [self] { self->wake_.cancel(); });
  });
  const uint64_t epoch = ++watch_epoch_;
  net::co_spawn(stream_.executor(), [self = shared_from_this(), epoch] { return self->watch(epoch); }, net::detached);
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
    } else if (!gone_) {  // waits for an event; if the client has disconnected, none will come
      error_code ec;
      wake_.expires_at(end);
      co_await wake_.async_wait(net::redirect_error(net::use_awaitable, ec));
    }
    if (gone_ || !ok || std::chrono::steady_clock::now() >= end) {
      exchange->abandon();
      break;
    }
  }
  // Ends watch(): its wait is the only pending operation of the stream now.
  ++watch_epoch_;
  stream_.cancel();
  if (turn.kind == Kind::kEnd && ok && streaming) ok = co_await write_data({}, true);
  if (turn.kind == Kind::kReply) {
    const bool close = !keep_alive();
    co_await write_reply(std::move(turn.reply), close);
    co_return close || !keep_alive_ ? After::kClose : After::kNext;
  }
  if (turn.kind != Kind::kEnd && !streaming && !gone_) co_await refuse(request_timeout());
  co_return turn.kind == Kind::kEnd && ok && keep_alive() && request_.version == 11 ? After::kNext : After::kClose;
}

// Detects that the client disconnects while the engine works: the byte stream ends. Stops watching when bytes of the
// next request arrive. A client that shuts down only its sending direction counts as disconnected.
net::awaitable<void> Connection::watch(uint64_t epoch) {
  const auto self = shared_from_this();
  ByteStream::Waiting waiting = ByteStream::Waiting::kNothing;
  while (waiting == ByteStream::Waiting::kNothing) {
    error_code ec;
    co_await stream_.wait(ec);
    if (ec || epoch != watch_epoch_) co_return;
    waiting = stream_.waiting();
  }
  if (waiting == ByteStream::Waiting::kBytes) co_return;
  gone_ = true;
  wake_.cancel();
}

net::awaitable<void> Connection::write_reply(HttpReply reply, bool close) {
  error_code ec;
  Head head = make_head(request_, reply.status, reply.content_type, !close);
  for (const auto& [name, value] : reply.headers) head.set(name, value);
  if (reply.status != 204) head.content_length(reply.body.size());
  handler_.replied(request_, reply.status);
  arm(shared_.limits.write_seconds);
  const std::string text = text_of(head);
  const std::string_view body = request_.method == "HEAD" ? std::string_view() : reply.body;
  co_await stream_.write(text, body, ec);
  disarm();
  if (ec || close) {
    keep_alive_ = false;
    stream_.finish_sending();
  }
}

net::awaitable<bool> Connection::write_stream_head() {
  error_code ec;
  Head head = make_head(request_, 200, "text/event-stream; charset=utf-8", keep_alive() && request_.version == 11);
  head.set("X-Accel-Buffering", "no");
  head.chunked(request_.version == 11);
  handler_.replied(request_, 200);
  arm(shared_.limits.write_seconds);
  const std::string text = text_of(head);
  co_await stream_.write(text, {}, ec);
  disarm();
  co_return !ec;
}

net::awaitable<bool> Connection::write_data(std::string data, bool last) {
  error_code ec;
  std::string size;
  if (request_.version == 11) {  // HTTP/1.1 streams are chunked
    size = format("%zx\r\n", data.size());
    data += "\r\n";
  }
  arm(shared_.limits.write_seconds);
  co_await stream_.write(size, data, ec);
  disarm();
  if (last && (request_.version != 11 || !keep_alive())) stream_.finish_sending();
  co_return !ec;
}

net::awaitable<void> Connection::refuse(ApiError error) {
  HttpReply reply = error_reply(error, request_.id);
  request_.held.reset();
  co_await write_reply(std::move(reply), true);
  co_await linger();
}

// Reads and discards some bytes before the connection is closed. Closing with unread bytes would reset the connection,
// and the client could lose the reply.
net::awaitable<void> Connection::linger() {
  error_code ec;
  std::string sink(64 << 10, '\0');
  size_t total = 0;
  enter(Phase::kReading);
  arm(kLingerSeconds);
  while (!ec && total < kLingerBytes) {
    const auto room = net::buffer(sink);
    const size_t n = co_await stream_.discard_some(room, ec);
    total += n;
  }
  disarm();
}

}  // namespace specdec::deploy
