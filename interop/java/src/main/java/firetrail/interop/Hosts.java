package firetrail.interop;

import java.net.Inet6Address;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;

/** Hosts as text: {@code 10.1.2.3:50001} and {@code [2001:db8::1]:50001} (shortest form, RFC 5952). */
final class Hosts {
    private Hosts() {
    }

    static InetSocketAddress parse(String text) {
        int colon = text.lastIndexOf(':');
        if (colon <= 0) {
            throw new UsageError("host '" + text + "' is not of the form ip:port or [ipv6]:port");
        }
        try {
            InetAddress ip = InetAddress.getByName(text.substring(0, colon));
            return new InetSocketAddress(ip, Integer.parseInt(text.substring(colon + 1)));
        } catch (UnknownHostException | NumberFormatException e) {
            throw new UsageError("host '" + text + "' is not of the form ip:port or [ipv6]:port: " + e.getMessage());
        }
    }

    static String format(SocketAddress host) {
        InetSocketAddress address = (InetSocketAddress) host;
        InetAddress ip = address.getAddress();
        String name = ip instanceof Inet6Address ? "[" + shorten(ip.getAddress()) + "]" : ip.getHostAddress();
        return name + ":" + address.getPort();
    }

    /** The longest run of two or more zero groups (the first of equals) becomes a double colon. */
    private static String shorten(byte[] ip) {
        int[] groups = new int[8];
        for (int i = 0; i < 8; i++) {
            groups[i] = ByteBuffer.wrap(ip).getShort(2 * i) & 0xFFFF;
        }
        int start = -1;
        int length = 1;
        for (int i = 0; i < 8; i++) {
            int end = i;
            while (end < 8 && groups[end] == 0) {
                end++;
            }
            if (end - i > length) {
                start = i;
                length = end - i;
            }
            i = Math.max(i, end - 1);
        }
        StringBuilder out = new StringBuilder();
        for (int i = 0; i < 8; i++) {
            if (i == start) {
                out.append("::");
                i += length - 1;
            } else {
                if (out.length() > 0 && out.charAt(out.length() - 1) != ':') {
                    out.append(':');
                }
                out.append(Integer.toHexString(groups[i]));
            }
        }
        return out.toString();
    }
}
