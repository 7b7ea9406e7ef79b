import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;

/** A connection to Redis, where the commands of the interop specs are. */
final class Redis {
    private final InputStream in;
    private final OutputStream out;

    Redis(String host, int port) throws IOException {
        Socket socket = new Socket(host, port);
        socket.setTcpNoDelay(true);
        in = new BufferedInputStream(socket.getInputStream());
        out = socket.getOutputStream();
    }

    /** The reply as text; of a list, its last item; null for nil. */
    String call(Object... words) {
        try {
            ByteArrayOutputStream all = new ByteArrayOutputStream();
            all.write(("*" + words.length + "\r\n").getBytes());
            for (Object word : words) {
                byte[] bytes = String.valueOf(word)
                    .getBytes(StandardCharsets.UTF_8);
                all.write(("$" + bytes.length + "\r\n").getBytes());
                all.write(bytes);
                all.write("\r\n".getBytes());
            }
            out.write(all.toByteArray());
            return read();
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    private String line() throws IOException {
        StringBuilder text = new StringBuilder();
        int c;
        while ((c = in.read()) != '\r') {
            if (c < 0) {
                throw new IOException("Redis has closed the connection");
            }
            text.append((char) c);
        }
        in.read();
        return text.toString();
    }

    private String read() throws IOException {
        String head = line(), rest = head.substring(1), last = null;
        switch (head.charAt(0)) {
            case '$':
                int size = Integer.parseInt(rest);
                if (size < 0) {
                    return null;
                }
                byte[] bytes = in.readNBytes(size);
                in.readNBytes(2);
                return new String(bytes, StandardCharsets.UTF_8);
            case '*':
                for (int i = 0; i < Integer.parseInt(rest); i++) {
                    last = read();
                }
                return last;
            case '-': throw new IOException(rest);
            default: return rest;
        }
    }
}
