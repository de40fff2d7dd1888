# The configuration is that of the official image: one server, on port 80, for what lies in /usr/share/nginx/html.
FROM labkit-standin/base:13
RUN apt-get install -qq nginx && useradd --system nginx && rm -r /etc/nginx/sites-enabled && \
    printf 'server {\n    listen 80;\n    root /usr/share/nginx/html;\n}\n' > /etc/nginx/conf.d/default.conf && \
    sed -i 's/^user .*/user nginx;/; /sites-enabled/d; s#/var/log/nginx/access.log#/dev/stdout#; s#/var/log/nginx/error.log#stderr#' \
        /etc/nginx/nginx.conf
EXPOSE 80
CMD ["nginx", "-g", "daemon off;"]
